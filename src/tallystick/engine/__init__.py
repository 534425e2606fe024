"""The one write path: group commit, and claim-run-record-replay on top of it."""
