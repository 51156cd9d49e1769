"""Families that make pictures and videos."""
