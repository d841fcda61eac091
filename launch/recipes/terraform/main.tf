# An appliance that runs, by Terraform or OpenTofu: never run. The provider `http` reads and checks; it makes requests at
# each plan, so it changes nothing here. The provider `restapi` keeps entries of lists, which PUT makes and repeats
# without a change.

terraform {
  required_version = ">= 1.5"
  required_providers {
    http = {
      source  = "hashicorp/http"
      version = "~> 3.4"
    }
    restapi = {
      source  = "Mastercard/restapi"
      version = "~> 2.0"
    }
  }
}

variable "gateway" {
  description = "URL of the appliance"
  type        = string
  default     = "http://10.0.0.1"
}

variable "token" {
  description = "Token of a user with the role admin"
  type        = string
  sensitive   = true
}

variable "exports" {
  description = "Exports by name: the volume, and the networks whose hosts may open it"
  type = map(object({
    volume = string
    hosts  = list(string)
  }))
  default = {
    data = {
      volume = "data"
      hosts  = ["10.0.0.0/24"]
    }
  }
}

provider "restapi" {
  uri                  = "${var.gateway}/api/v1"
  create_method        = "PUT"
  update_method        = "PUT"
  write_returns_object = false
  headers = {
    Authorization = "Bearer ${var.token}"
    Content-Type  = "application/json"
  }
}

resource "restapi_object" "export" {
  for_each     = var.exports
  path         = "/exports"
  create_path  = "/exports/{id}"
  object_id    = each.key
  id_attribute = "name"
  data = jsonencode({
    name   = each.key
    volume = each.value.volume
    hosts  = each.value.hosts
  })
}

data "http" "ready" {
  url        = "${var.gateway}/readyz"
  depends_on = [restapi_object.export]

  lifecycle {
    postcondition {
      condition     = self.status_code == 200
      error_message = "The appliance is not ready: ${self.response_body}"
    }
  }
}

# The running configuration without secrets.
data "http" "running" {
  url = "${var.gateway}/api/v1/config/running?format=json"
  request_headers = {
    Authorization = "Bearer ${var.token}"
  }
}

output "hostname" {
  value = jsondecode(data.http.running.response_body).system.hostname
}
