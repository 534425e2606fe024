"""Where webhooks are appended before they are acknowledged: a port, PostgreSQL, and Kafka."""
