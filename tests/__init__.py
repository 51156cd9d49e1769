"""The tests, laid out as the rooms that they test."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
