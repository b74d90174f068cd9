"""Build script; all metadata lives in setup.cfg, but for the list of packages, which setup.cfg cannot compose."""

from setuptools import find_packages, setup

# configs/ lies at the top of the checkout for people to find; installed, it is part of the package.
setup(
    packages=[*find_packages(include=["remat_cli", "remat_cli.*"]), "remat_cli.configs"],
    package_dir={"remat_cli.configs": "configs"},
)
