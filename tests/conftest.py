"""Settings for every test: the machine may be busy, so no Hypothesis deadline."""

from hypothesis import settings

settings.register_profile("ostinato", deadline=None)
settings.load_profile("ostinato")
