"""The Gemini dialect: generateContent, streamGenerateContent, countTokens, models, and cachedContents.

wire.py ─► contents.py ─► Prompt ─► generate.py ─► render.py, stream.py
               ▲                        ▲
cached_contents.py: the prefix ─────────┴── its tokens, read from the cache
"""
