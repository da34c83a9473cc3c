"""OpenAI's Responses API: stored, continued, streamed, and diagnosed."""
