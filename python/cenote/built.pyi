# Written when the package is built; a source tree has none.
VERSION: str
