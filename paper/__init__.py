r"""The paper's experiments again, with the library: one module for each, and a page that compares.

``python -m paper`` trains and measures them; what it finds stands in docs/results.md.
"""
