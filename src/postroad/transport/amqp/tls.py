"""What a TLS connection to the broker trusts, and what it shows of itself."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import Final

from postroad.errors import SettingsError

CA: Final = "POSTROAD_BROKER_CA"
CERTIFICATE: Final = "POSTROAD_BROKER_CERT"
KEY: Final = "POSTROAD_BROKER_KEY"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """Files in PEM: authorities (the system's where None), our certificate with its chain, and its key.

    Without `key` it is in `certificate`. The broker's certificate and its host name are always verified; TLS 1.2 is
    the least. Nothing switches that off.
    """

    ca: str | None = None
    certificate: str | None = None
    key: str | None = None

    def context(self) -> ssl.SSLContext:
        """Read the files as they are now: each connection asks anew, so that a rotated certificate needs no restart.

        Raises:
            SettingsError: a file is missing, or not what it should be; the text names its setting.
        """
        context = self._trusting()
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self.certificate is not None:
            try:
                # A password, though an empty one: without any OpenSSL would ask the terminal for it.
                context.load_cert_chain(self.certificate, self.key, password="")
            except (OSError, ValueError) as error:
                names = CERTIFICATE if self.key is None else f"{CERTIFICATE} and {KEY}"
                raise SettingsError(
                    "PR201", f"{names}: no certificate with its unencrypted key in PEM ({_why(error)})"
                ) from error
        return context

    def _trusting(self) -> ssl.SSLContext:
        try:
            return ssl.create_default_context(cafile=self.ca)
        except (OSError, ValueError) as error:
            raise SettingsError("PR201", f"{CA}: no certificates in PEM ({_why(error)})") from error


def _why(error: BaseException) -> str:
    """OpenSSL's name for it, or the system's: neither quotes a file."""
    found = getattr(error, "reason", None) or getattr(error, "strerror", None)
    return str(found) if found else type(error).__name__
