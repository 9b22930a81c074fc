"""When a certificate in a file ends."""

import datetime
import ssl
from pathlib import Path

import pytest
import trustme
from cryptography import x509

from tallystick.replication.transport.certificates import Presented, TlsError


@pytest.mark.parametrize("year", [2031, 2049, 2050, 2999], ids=str)
def test_the_end_of_a_certificate(tmp_path: Path, year: int) -> None:
    """From 2050 on, certificates have the other form of time."""
    end = datetime.datetime(year, 5, 6, 7, 8, 9, tzinfo=datetime.UTC)
    made = trustme.CA().issue_cert("broker.shop", not_after=end)
    path = tmp_path / "tls.crt"
    path.write_bytes(b"".join(blob.bytes() for blob in made.cert_chain_pems))
    assert Presented.read(path).expires_s == end.timestamp()
    assert x509.load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc == end


@pytest.mark.parametrize("cut", [0, 40, 300])
def test_a_file_without_a_certificate(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "tls.crt"
    path.write_bytes(trustme.CA().cert_pem.bytes()[:cut])
    with pytest.raises(TlsError, match=r"tls\.crt: not a certificate"):
        Presented.read(path)


def test_every_cut_certificate_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tls.crt"
    whole = ssl.PEM_cert_to_DER_cert(trustme.CA().cert_pem.bytes().decode())
    for size in range(0, 90, 3):
        path.write_text(ssl.DER_cert_to_PEM_cert(whole[:size]))
        with pytest.raises(TlsError, match="not a certificate"):
            Presented.read(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(TlsError, match="No such file"):
        Presented.read(tmp_path / "tls.crt")
