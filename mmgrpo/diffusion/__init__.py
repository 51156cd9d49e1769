"""What denoising policies are made of: noise schedules, transition kernels, plans of a rollout, and ODE solvers."""
