"""Access control of a measured broker: an account for the load generator, and an address that needs none.

The load generator signs its messages. The harness asks brokers from another address of loopback, which is in the white
list, so that its few requests need no signature.
"""

from pathlib import Path

CONTROL_ADDRESS = "127.0.0.2"
ACCESS_KEY = "load-generator"
SECRET_KEY = "secret-of-load-generator"
_ACCOUNTS = f"""globalWhiteRemoteAddresses: [{CONTROL_ADDRESS}]
accounts:
- {{accessKey: {ACCESS_KEY}, secretKey: {SECRET_KEY}, defaultTopicPerm: PUB, defaultGroupPerm: SUB}}
- {{accessKey: administrator, secretKey: secret-of-administrator, admin: true}}
"""
_CREDENTIALS = "accessKey: administrator\nsecretKey: secret-of-administrator\n"


def write_accounts(file: Path) -> None:
    """The account file that both brokers read."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(_ACCOUNTS)


def our_settings(work: Path) -> list[str]:
    """Settings that switch access control on in our broker, with files in `work`."""
    accounts, credentials = work / "plain_acl.yml", work / "tools.yml"
    write_accounts(accounts)
    credentials.write_text(_CREDENTIALS)
    return ["aclEnable=true", f"aclFile={accounts}", f"aclCredentialsFile={credentials}"]
