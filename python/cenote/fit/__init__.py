"""`cenote dry-run`: will a program fit?"""
