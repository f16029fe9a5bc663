"""The web page: runs to watch and to steer, keys and what they used.

files.py     the page's own files, by a fixed table       session.py   signing in by a cookie that scripts cannot read
usage.py     what keys used, as JSON                      service.py   all of its routes
static/      HTML, CSS and JavaScript, as they are served
"""
