"""What persons and late news decide about a payout."""
