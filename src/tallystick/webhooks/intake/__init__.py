"""From a log to the database, at a pace that it can take."""
