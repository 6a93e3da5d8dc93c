# Installs hexserve from this folder for the user who runs it, without administrator:
#   powershell -ExecutionPolicy Bypass -File deploy\install.ps1 [-Npu]
# It needs uv, or Python 3.11 to 3.13. Packages are the locked ones, checked against their hashes. Repeated, it updates.
param([switch]$Npu)
$ErrorActionPreference = "Stop"

$project = Split-Path -Parent $PSScriptRoot
$place = Join-Path $env:LOCALAPPDATA "hexserve"
$environment = Join-Path $place "env"
$python = Join-Path $environment "Scripts\python.exe"
$bin = Join-Path $place "bin"
# PowerShell for x64 runs on ARM64 too and then names its own architecture first.
$isArm = ($env:PROCESSOR_ARCHITECTURE, $env:PROCESSOR_ARCHITEW6432) -contains "ARM64"

function Invoke-Program([string]$program, [string[]]$arguments) {
    & $program @arguments
    if ($LASTEXITCODE -ne 0) { throw "$program $($arguments -join ' ') ended with status $LASTEXITCODE" }
}

function Find-Python {
    $ErrorActionPreference = "Continue"  # Windows PowerShell 5.1 takes what a program writes to stderr for an error
    foreach ($version in "3.12", "3.13", "3.11") {
        if (Get-Command py -ErrorAction SilentlyContinue) {
            & py "-$version" -c "import venv" 2>$null
            if ($LASTEXITCODE -eq 0) { return @("py", "-$version") }
        }
    }
}

if (Get-Command uv -ErrorAction SilentlyContinue) {
    $wanted = if ($isArm) { "cpython-3.12-windows-aarch64-none" } else { "3.12" }
    Invoke-Program "uv" @("venv", "--quiet", "--clear", "--python", $wanted, $environment)
    Invoke-Program $python @("-m", "ensurepip", "--default-pip")  # models of packages are fetched by pip too
} else {
    $launcher = Find-Python
    if (-not $launcher) { throw "neither uv nor Python 3.11 to 3.13 (with its launcher py) was found: install one" }
    Invoke-Program $launcher[0] @($launcher[1], "-m", "venv", "--clear", $environment)
}
$machine = & $python -c "import platform; print(platform.machine())"
if ($isArm -and $machine -ne "ARM64") {
    Write-Warning "this Python is for $machine and cannot reach the NPU: install Python for ARM64 and run this again"
}

Write-Output "installing into $environment, about a minute"
$pip = @("-m", "pip", "install", "--quiet", "--disable-pip-version-check")
$locks = Join-Path $project "deploy\locks"
Invoke-Program $python ($pip + @("--require-hashes", "-r", (Join-Path $locks "compile.txt")))
if ($Npu) { Invoke-Program $python ($pip + @("--require-hashes", "-r", (Join-Path $locks "qnn.txt"))) }
Invoke-Program $python ($pip + @("--no-build-isolation", "--no-deps", $project))

# A folder of its own on PATH, so that this environment's python does not hide another one.
New-Item -ItemType Directory -Force $bin | Out-Null
Set-Content -Encoding Ascii (Join-Path $bin "hexserve.cmd") "@`"%~dp0..\env\Scripts\hexserve.exe`" %*"
$path = [string][Environment]::GetEnvironmentVariable("Path", "User")
if (($path -split ";") -notcontains $bin) {
    [Environment]::SetEnvironmentVariable("Path", "$($path.TrimEnd(';'));$bin".TrimStart(';'), "User")
}
$env:Path = "$env:Path;$bin"
Invoke-Program (Join-Path $environment "Scripts\hexserve.exe") @("--version")
Write-Output "Try in a new PowerShell: hexserve run smollm2"
