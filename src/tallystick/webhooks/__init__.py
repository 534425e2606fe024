"""What providers tell us: received, kept, processed."""
