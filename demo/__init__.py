"""The demonstration: its data, an orchestrator process and a trainer process."""
