#!/bin/bash
# cenote-qualify on the simulated GPU: its verdict under each quirk and on older drivers, its screen and files, its arguments; prices that it wrote.
exec python3 -B tests/tools/qualify.py
