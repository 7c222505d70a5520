"""Who holds memory, and what makes it grow."""
