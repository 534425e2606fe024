"""Who may pay how much to whom, and what needs a second person."""
