"""What an algorithm requires of settings, policy, rewards and prompts, checked before anything is sampled."""
