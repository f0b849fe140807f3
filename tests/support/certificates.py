"""A certificate authority for one test, and server certificates of every kind that a client must judge."""

from __future__ import annotations

import datetime as dt
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class Authority:
    """Signs certificates; `bundle` is what a client trusts."""

    def __init__(self, home: Path, name: str) -> None:
        self._home = home
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = (
            self._builder(self._name, self._key.public_key(), days=30)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        self.bundle = home / f"{name}.crt"
        self.bundle.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def issue(self, *hosts: str, days: int = 30) -> tuple[Path, Path]:
        """Certificate and key for these names or addresses; with negative days it has ended already."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = [_name(host) for host in hosts]
        certificate = (
            self._builder(x509.Name([]), key.public_key(), days)
            .add_extension(x509.SubjectAlternativeName(names), critical=True)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        stem = self._home / f"server-{len(list(self._home.glob('server-*.crt')))}"
        crt, pem = stem.with_suffix(".crt"), stem.with_suffix(".key")
        crt.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        pem.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return crt, pem

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePublicKey, days: int) -> x509.CertificateBuilder:
        now = dt.datetime.now(dt.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(days=60))
            .not_valid_after(now + dt.timedelta(days=days))
        )


def _name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
