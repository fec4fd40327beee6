"""The part of the mail server that runs under the Python of the mail tools.

`main.py` is the process; `submission.py` takes mail from authenticated users, `headers.py` (pure) says
whose mail it is and writes the verdict, `delivery.py` hands it on, `faults.py` makes it fail on request,
`control.py` is how tests reach in, `pymap_store.py` replaces Dovecot where there is none,
`certificates.py` makes the TLS files.

aiosmtpd, pymap and trustme exist only in the tool environment. They are imported by name inside
functions, so that every module here can be imported (and type-checked) without them.
"""
