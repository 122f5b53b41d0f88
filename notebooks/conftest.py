"""nbval compares the tutorials; what they showed on a card is not run again."""

collect_ignore = ["recorded"]
