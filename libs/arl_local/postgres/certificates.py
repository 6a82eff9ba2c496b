"""The certificates of the embedded Postgres: an authority per installation, and a server certificate per start."""

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from arl_store.files import replace_file

__all__ = ["ServerCertificate", "issue_server_certificate"]

_AUTHORITY_LIFETIME = timedelta(days=3650)
_SERVER_LIFETIME = timedelta(days=825)
_CLOCK_TOLERANCE = timedelta(days=1)


class ServerCertificate:
    """The files of a certificate in a state directory."""

    def __init__(self, directory: Path) -> None:
        self.authority_key = directory / "ca-key.pem"
        self.authority = directory / "ca.pem"
        self.certificate = directory / "server.pem"
        self.key = directory / "server-key.pem"


def issue_server_certificate(directory: Path, address: str) -> ServerCertificate:
    """Issue a certificate for an IP address. The first call creates the authority, which nodes trust from then on."""
    directory.mkdir(mode=0o700, exist_ok=True)
    files = ServerCertificate(directory)
    if not files.authority.exists():
        _create_authority(files)
    authority_key = serialization.load_pem_private_key(files.authority_key.read_bytes(), password=None)
    authority = x509.load_pem_x509_certificate(files.authority.read_bytes())
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = (
        _builder("tangram-postgres", authority.subject, key, _SERVER_LIFETIME)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address(address))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(_ec_key(authority_key), hashes.SHA256())
    )
    replace_file(files.key, _private_pem(key))
    replace_file(files.certificate, _public_pem(certificate))
    return files


def _create_authority(files: ServerCertificate) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name("tangram-authority")
    usage = x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    certificate = (
        _builder("tangram-authority", name, key, _AUTHORITY_LIFETIME)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(key, hashes.SHA256())
    )
    # The certificate last: it shows that the authority is complete.
    replace_file(files.authority_key, _private_pem(key))
    replace_file(files.authority, _public_pem(certificate))


def _builder(
    subject: str, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, lifetime: timedelta
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(_name(subject))
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_TOLERANCE)
        .not_valid_after(now + lifetime)
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _ec_key(key: object) -> ec.EllipticCurvePrivateKey:
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise TypeError("the key of the authority must be an elliptic curve key")
    return key


def _private_pem(key: ec.EllipticCurvePrivateKey) -> str:
    encryption = serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption).decode()


def _public_pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()
