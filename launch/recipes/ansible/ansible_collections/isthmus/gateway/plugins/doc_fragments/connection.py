# SPDX-License-Identifier: MIT OR Apache-2.0
"""Options of all modules: the appliance, and the user."""

from __future__ import absolute_import, division, print_function

__metaclass__ = type


class ModuleDocFragment(object):
    DOCUMENTATION = r"""
options:
  url:
    description: Address of the appliance, as C(http://10.0.0.1) or C(https://gateway-1).
    type: str
    required: true
  token:
    description: Token of a user with the role that the action needs.
    type: str
  ca_path:
    description: File with the certificate that signs the appliance's, or with its own.
    type: path
  client_cert:
    description: File with the certificate of a user, for TLS.
    type: path
  client_key:
    description: File with its key.
    type: path
  timeout:
    description: Seconds in which the appliance has to answer a request.
    type: int
    default: 20
"""
