# One agent on one machine of Azure.

terraform {
  required_version = ">= 1.5"
  required_providers {
    azurerm = {
      source  = "hashicorp/azurerm"
      version = ">= 3.100, < 5.0"
    }
  }
}

resource "azurerm_network_security_group" "this" {
  name                = var.name
  location            = var.location
  resource_group_name = var.resource_group
}

# Azure lets in what comes from the same virtual network unless a rule says otherwise.
resource "azurerm_network_security_rule" "deny" {
  name                        = "deny-in"
  priority                    = 4000
  direction                   = "Inbound"
  access                      = "Deny"
  protocol                    = "*"
  source_port_range           = "*"
  destination_port_range      = "*"
  source_address_prefix       = "*"
  destination_address_prefix  = "*"
  resource_group_name         = var.resource_group
  network_security_group_name = azurerm_network_security_group.this.name
}

resource "azurerm_network_security_rule" "peers" {
  count                       = length(var.peer_cidrs) > 0 ? 1 : 0
  name                        = "peers-in"
  priority                    = 1000
  direction                   = "Inbound"
  access                      = "Allow"
  protocol                    = "Tcp"
  source_port_range           = "*"
  destination_port_range      = "7072"
  source_address_prefixes     = var.peer_cidrs
  destination_address_prefix  = "*"
  resource_group_name         = var.resource_group
  network_security_group_name = azurerm_network_security_group.this.name
}

resource "azurerm_network_interface" "this" {
  name                = var.name
  location            = var.location
  resource_group_name = var.resource_group

  ip_configuration {
    name                          = "private"
    subnet_id                     = var.subnet_id
    private_ip_address_allocation = "Dynamic"
  }
}

resource "azurerm_network_interface_security_group_association" "this" {
  network_interface_id      = azurerm_network_interface.this.id
  network_security_group_id = azurerm_network_security_group.this.id
}

resource "azurerm_managed_disk" "data" {
  name                 = "${var.name}-data"
  location             = var.location
  resource_group_name  = var.resource_group
  storage_account_type = "Premium_LRS"
  create_option        = "Empty"
  disk_size_gb         = var.disk_gib
}

resource "azurerm_linux_virtual_machine" "this" {
  name                  = var.name
  location              = var.location
  resource_group_name   = var.resource_group
  size                  = var.vm_size
  admin_username        = "periplusadmin"
  network_interface_ids = [azurerm_network_interface.this.id]
  priority              = var.spot ? "Spot" : "Regular"
  eviction_policy       = var.spot ? "Deallocate" : null
  custom_data = base64encode(templatefile("${path.module}/../cloud-init.yaml.tftpl", {
    cloud       = "azure"
    region      = var.region_name
    coordinator = var.coordinator
    advertise   = var.advertise
    join_token  = var.join_token
    repository  = var.repository
    revision    = var.revision
    spot        = var.spot
    disk        = "/dev/disk/azure/scsi1/lun0"
  }))

  admin_ssh_key {
    username   = "periplusadmin"
    public_key = var.ssh_public_key
  }

  os_disk {
    caching              = "ReadWrite"
    storage_account_type = "Premium_LRS"
    disk_size_gb         = 60
  }

  source_image_reference {
    publisher = var.image.publisher
    offer     = var.image.offer
    sku       = var.image.sku
    version   = "latest"
  }
}

resource "azurerm_virtual_machine_data_disk_attachment" "data" {
  managed_disk_id    = azurerm_managed_disk.data.id
  virtual_machine_id = azurerm_linux_virtual_machine.this.id
  lun                = 0
  caching            = "None"
}

output "private_address" {
  description = "Private address of the machine."
  value       = azurerm_network_interface.this.private_ip_address
}
