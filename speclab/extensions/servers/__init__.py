"""vLLM's servers: starting and stopping them, requests, counters, and the lab's own rounds beside those."""
