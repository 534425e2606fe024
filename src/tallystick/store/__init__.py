"""PostgreSQL: every statement of the product, beside the code that runs it."""
