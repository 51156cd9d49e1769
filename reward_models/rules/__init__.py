"""Verifiers: rewards without weights."""
