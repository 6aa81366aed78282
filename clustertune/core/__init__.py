"""Types of the data that all rooms exchange, reports, errors, settings, arguments."""
