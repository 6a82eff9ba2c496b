"""Images by name: pulled from registries, unpacked to the template store, and removed when the disk budget is used."""
