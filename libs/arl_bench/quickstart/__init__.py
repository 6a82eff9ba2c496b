"""The first minutes with Tangram: three programs, then agents on a temporary system."""
