"""The sections of a page, with its template, style and script."""
