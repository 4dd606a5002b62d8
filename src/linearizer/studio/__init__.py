"""The studio: a page and a REST API on trained models."""
