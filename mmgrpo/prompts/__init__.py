"""What a round is made of: the ledger of prompts, trackers, samplers, rows that it remembers or is given."""
