"""The catalogue of reward services: registrations and model files."""
