"""Parts of requests and responses of several cells. Pure: no clock, no network."""
