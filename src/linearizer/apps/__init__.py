"""The applications: each a model whose methods return Linearizers, and what people do with it."""

from .registry import describe_apps, find_app, load_app, register

__all__ = ["describe_apps", "find_app", "load_app", "register"]
