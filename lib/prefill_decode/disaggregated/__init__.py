"""Disaggregated: prefill and decode in processes of their own, and who sends requests through."""
