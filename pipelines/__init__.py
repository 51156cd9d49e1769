"""Model families: each file makes one family of models answer the few questions of a policy."""
