"""The one write path: many callers, few transactions."""
