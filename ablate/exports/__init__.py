"""Exports of finished runs to trackers; each is imported only when it is asked for."""
