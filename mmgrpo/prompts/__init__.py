"""What a round is made of: the ledger of prompts, trackers, samplers."""
