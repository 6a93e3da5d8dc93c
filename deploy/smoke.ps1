# Health, models, one chat and one streamed chat against a running server: deploy\smoke.ps1 [URL]
param([string]$Url = "http://127.0.0.1:8000")
$ErrorActionPreference = "Stop"
$Url = $Url.TrimEnd("/")
$headers = @{}
$key = @()
if ($env:OPENAI_API_KEY) {
    $headers["Authorization"] = "Bearer $env:OPENAI_API_KEY"
    $key = @("-H", "Authorization: Bearer $env:OPENAI_API_KEY")
}

Invoke-RestMethod "$Url/health" -Headers $headers -TimeoutSec 60 | Out-Null
Write-Output "health  ok"

$model = (Invoke-RestMethod "$Url/v1/models" -Headers $headers -TimeoutSec 60).data[0].id
if (-not $model) { throw "no model in $Url/v1/models" }
Write-Output "model   $model"

$request = @{
    model = $model
    messages = @(@{ role = "user"; content = "What is the capital of France?" })
    max_tokens = 32
    temperature = 0
}
$body = $request | ConvertTo-Json -Depth 5
$answer = Invoke-RestMethod "$Url/v1/chat/completions" -Method Post -Headers $headers -TimeoutSec 60 `
    -ContentType "application/json" -Body $body
if (-not $answer.choices[0].finish_reason) { throw "no finish_reason" }
Write-Output "chat    $($answer.choices[0].message.content)"

# curl.exe comes with Windows 10 and later; Invoke-RestMethod would hold a stream back until its end.
$request["stream"] = $true
$body = $request | ConvertTo-Json -Depth 5 -Compress
$lines = $body | curl.exe --silent --show-error --fail --no-buffer --max-time 60 @key `
    -H "Content-Type: application/json" --data "@-" "$Url/v1/chat/completions"
if ($LASTEXITCODE -ne 0) { throw "a streamed chat failed" }
$events = @($lines | Where-Object { $_ -like "data: *" })
if ($events.Count -lt 2 -or $events[-1] -ne "data: [DONE]") { throw "the stream does not end with [DONE]" }
Write-Output "stream  $($events.Count - 1) chunks"
