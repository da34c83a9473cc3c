"""What a response repeats of its request must be text and numbers that strict JSON can hold.

JSON can smuggle in lone surrogates, ``NaN`` and ``1e999``. In most fields their types refuse them; tools, items
and formats are open objects, are stored and sent again as they came, and are looked through here.
"""

from __future__ import annotations

import json

from ostinato.api.fields import ApiModel
from ostinato.errors import InvalidRequestError


def require_repeatable(body: ApiModel) -> None:
    """Look through all fields of a request.

    Raises:
        InvalidRequestError: naming the field.
    """
    for name, value in body.model_dump(exclude_unset=True).items():
        shown = name or "a field without a name"
        try:
            json.dumps({name: value}, ensure_ascii=False, allow_nan=False).encode()
        except UnicodeEncodeError:
            raise InvalidRequestError(
                f"{shown} must be valid Unicode text, not text with a lone surrogate", param=shown
            ) from None
        except (ValueError, RecursionError):
            raise InvalidRequestError(
                f"{shown} must hold finite numbers only, and not be nested hundreds deep",
                param=shown,
            ) from None
