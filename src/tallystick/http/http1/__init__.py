"""HTTP/1.1 as uvicorn speaks it, with bounds, and short ways for what comes most."""
