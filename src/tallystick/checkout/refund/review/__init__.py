"""What two persons decide about money that waits for them."""
